"""Virtual functions of adapters: what they are set to around a tenancy."""
