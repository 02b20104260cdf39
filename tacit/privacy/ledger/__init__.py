"""Who was charged what, on disk, before anything is released."""
