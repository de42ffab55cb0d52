"""What this machine has and can do, and what would go wrong: for `areca doctor` (docs/is-my-machine-ready.md)."""
