"""The experiment behind `stalls`: quiet producers, and what disturbs them."""
