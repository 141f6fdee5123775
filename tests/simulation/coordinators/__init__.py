"""Lives of groups and transactions, and what a coordinator makes of every beginning of their records."""
