"""The audit trail: who did what to what and when, chained by hashes. No SQL, no gRPC, no clock."""
