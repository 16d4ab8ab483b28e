"""Planning before anything moves: where tensors are placed, what ranks may share out, and how long each way takes."""
