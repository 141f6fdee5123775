"""The controller: decides on metadata changes and applies their records."""
