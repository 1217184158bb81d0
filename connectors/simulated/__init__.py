"""A simulated cluster: one seeded scenario writes every raw input as the real systems write it, plus the truth.

`world` says what exists and happens; `scenario` builds it from a seed; the writers (`kubernetes_files`, `gpu_files`,
`hubble_files`, `vpc_flow_log_files`, `billing_files`, `policy_files`) turn it into files; `truth` writes what is true.
"""
