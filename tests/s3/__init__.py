"""Object stores for tests: S3 over moto and a small Google Cloud Storage, both on loopback."""
