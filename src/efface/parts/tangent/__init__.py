"""The paper's user part: f_core(x) + J(x) w, J the Jacobian of the tail, never formed."""
