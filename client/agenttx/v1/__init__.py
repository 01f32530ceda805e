"""The messages and services of the package `agenttx.v1`, generated from `protos/agenttx/v1`: never edited by hand."""
