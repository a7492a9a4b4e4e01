"""For engines that keep donors in their own prefix tree and load when they admit a request."""
