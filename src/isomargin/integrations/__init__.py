"""The package's scores and losses in the conventions of other libraries, one file per library, none imported here."""
