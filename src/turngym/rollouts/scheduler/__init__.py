"""The asynchronous rollout scheduler and its ledger."""
