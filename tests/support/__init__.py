"""What tests of several folders share; what those of one folder share lies beside them."""
