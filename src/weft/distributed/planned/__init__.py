"""What is known before anything moves: where tensors lie, what ranks may share out, and how long each way takes."""
