"""What would lower the memory of one model, each change worked out by asking again."""
