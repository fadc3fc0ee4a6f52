"""The engine where jobs share what is prepared."""
