"""Side by side with peers: the same work in moiety, in a bare PyTorch loop and in other frameworks."""
