"""What lies behind a URL: s3://, gs://, hf:// and whatever else fsspec opens, which is imported when one is used."""
