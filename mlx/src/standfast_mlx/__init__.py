"""The native half of standfast.mlx; users import that."""

from standfast_mlx._built import MLX_VERSION, NANOBIND_ABI

__all__ = ["MLX_VERSION", "NANOBIND_ABI"]
