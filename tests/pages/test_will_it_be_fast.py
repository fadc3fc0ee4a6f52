"""The decision page has the figures of the files that it names."""

from docs import speed_tables


def test_the_tables_are_those_of_the_files():
    page = speed_tables.PAGE.read_text()
    assert speed_tables.written(page) == page, "run python -m docs.speed_tables"


def test_every_table_is_in_the_page():
    page = speed_tables.PAGE.read_text()
    for name, rows in speed_tables.TABLES.items():
        assert f"<!-- measured: {name} -->\n| {next(rows())[0]} |" in page
