"""The jobs, one module each: settings, job, report."""
