"""What a figure means, what a code means, and who can have asked for memory that was not there."""
