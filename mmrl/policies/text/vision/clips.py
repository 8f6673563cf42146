"""How a model's own processor samples clips."""

from mmrl.policies.text.families import Family
from mmrl.policies.video.sampling import FramePlan
from mmrl.policies.video.settings import VideoSettings


def plan_of(family: Family, processor: object, settings: VideoSettings) -> FramePlan:
    """The plan of every clip: what this model and these settings want of it."""
    able = family.frames_are_pictures or ("video" in family.sees and getattr(processor, "video_processor", None) is not None)
    return FramePlan(
        fps=settings.fps,
        min_frames=settings.min_frames,
        max_frames=settings.max_frames,
        multiple=family.frame_multiple,
        budget=family.video_budget(processor, settings) if able else None,
        backend=settings.backend,
    )
