"""What changed between two analyses, or reports of them that were saved."""
