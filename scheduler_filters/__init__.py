"""What Nova's scheduler loads: filters, weighers, extra-spec validators."""
