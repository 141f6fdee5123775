"""The house rules that no other tool checks: structure, language, references, commit subjects."""
