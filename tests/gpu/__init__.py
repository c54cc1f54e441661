"""Everything that needs a real GPU: `./dev gpu`, see docs/devices.md."""
