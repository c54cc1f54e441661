"""What all packages stand on: values, messages and groups of torch."""
