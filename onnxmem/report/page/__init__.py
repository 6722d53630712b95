"""A report as one HTML file that needs no network, no server and no script."""
