"""Networks: any number of tensors, contracted two at a time along a good path and replayed."""
