"""What epochs after the first need not read or decode again: kept, shared, divided."""
