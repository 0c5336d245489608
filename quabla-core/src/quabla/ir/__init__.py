"""The intermediate representation: ops, programs, and passes over them."""
