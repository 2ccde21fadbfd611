"""What a round is: who is asked, what is sent, joined, counted and evaluated."""
