"""Group coordination: state machines over internal topics."""
