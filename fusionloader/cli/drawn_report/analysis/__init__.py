"""What a timeline says, as values and in words; nothing is drawn here."""
