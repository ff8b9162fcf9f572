"""HTTP access control of the workbench as plain ASGI: which requests are allowed, and the security headers."""
