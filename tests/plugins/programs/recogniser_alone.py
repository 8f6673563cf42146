"""Score an empty picture with the text recogniser, where OpenCV is missing."""

import sys


def main() -> None:
    sys.modules["cv2"] = None  # type: ignore[assignment] - so that importing it fails
    from PIL import Image

    from mmrl import Group, Prompt, Sample
    from mmrl.app.plugins.resolve import load

    reward = load("rewards/ocr.py", "rewards")(engine="recogniser")
    (scored,) = reward(Group(0, Prompt("1", answer="x"), (Sample(image=Image.new("RGB", (96, 48))),)))
    assert scored.value == 0
    assert not {"rapidocr", "rapidocr_onnxruntime"} & set(sys.modules)


if __name__ == "__main__":
    main()
