"""The sandbox: parser children that can do nothing but compute, and the pool that feeds and replaces them."""
