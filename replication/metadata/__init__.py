"""The metadata image and the records that it is built from."""
