"""The options that users set: frozen values, validated once."""
