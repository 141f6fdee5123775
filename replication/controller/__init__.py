"""The controller: decisions on cluster metadata, and the metadata log records that store them."""
