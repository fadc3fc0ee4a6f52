"""All that a user sets: frozen values, validated once."""
