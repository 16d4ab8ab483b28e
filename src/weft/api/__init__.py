"""The public calls: options checked and resolved into requests, plans found again or made."""
