"""Revisions to which names on a model hub and elsewhere are pinned, so that a run means the same next year."""

from __future__ import annotations

PINS: dict[str, str] = {
    "Qwen/Qwen3-VL-2B-Instruct": "89644892e4d85e24eaac8bacfd4f463576704203",
    "Qwen/Qwen3-VL-4B-Instruct": "ebb281ec70b05090aa6165b016eac8ec08e71b17",
    "Qwen/Qwen3-VL-8B-Instruct": "0c351dd01ed87e9c1b53cbc748cba10e6187ff3b",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "9c4b90e1e4ba969fd3b5378b57d966d725f1b86c",
    "Qwen/Qwen3-VL-32B-Instruct": "0cfaf48183f594c314753d30a4c4974bc75f3ccb",
    "Qwen/Qwen2.5-VL-3B-Instruct": "66285546d2b821cf421d4f5eb2576359d3770cd3",
    "Qwen/Qwen2.5-VL-7B-Instruct": "cc594898137f460bfe9f0759e9844b3ce807cfb5",
    "google/siglip2-base-patch16-384": "f775b65a79762255128c981547af89addcfe0f88",
    "google/siglip2-so400m-patch14-384": "e8e487298228002f3d8a82e0cd5c8ea9c567f57f",
    "sentence-transformers/all-MiniLM-L6-v2": "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
}
"""Models: hub id -> commit, as other public code has them in its own pins."""

MEMLENS = ("xiyuRenBill/MEMLENS", "afa101a1907cc37db40b50d649547964387b96b7")
"""MemLens's data set on the hub, and the commit."""
MEMLENS_CODE = ("https://github.com/xrenaf/MEMLENS", "fd4c8d70538ee40758b4825372d46b717e6db346")
"""MemLens's released evaluation code: the judge's prompts, and the words of a question to a whole conversation."""
DMV = ("https://github.com/yyyujintang/DMV-Bench", "6ee8a8ea944bb0e47c7ca988e2d9aac28d6a7865")
"""DMV-Bench's repository, which holds its catalogue and cues."""
DMV_IMAGES = ("yyyujintang/DMV-Bench-Images", "")
"""DMV-Bench's pictures on the hub. No commit of it is known here: the first fetch takes the newest and records it."""
