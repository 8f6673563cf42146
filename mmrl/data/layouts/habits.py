"""How a file writes its boxes, judged by all of them together: one row may fit two spellings, a whole file seldom does."""

from dataclasses import dataclass

FEW = 20
"""Boxes it takes for their sizes alone to make a file look normalised."""
_SLACK = 1.0
"""Pixels by which a box may stick out of its picture."""


@dataclass
class BoxHabits:
    """Counts of how the four numbers of boxes fit their pictures."""

    num: int = 0
    as_corners: int = 0
    """Boxes that are two corners inside their picture."""
    as_sizes: int = 0
    """Boxes that are a corner, width and height inside their picture."""
    as_shares: int = 0
    """Corners within 0 to 1."""
    as_percents: int = 0
    """Boxes within 0 to 100, as corners or sizes."""
    past_percents: int = 0
    """Boxes on pictures that are wider and higher than 120 pixels."""
    as_thousandths: int = 0
    """Corners within 0 to 1000."""
    on_large: int = 0
    """Boxes on pictures that are wider and higher than 1,200 pixels."""
    most: float = 0.0
    """The largest number of all."""

    def add(self, box: list[float], size: tuple[int, int]) -> None:
        """Count a box on a picture (width, height)."""
        x, y, third, fourth = box
        width, height = (side + _SLACK for side in size)
        is_corner = 0 <= x < third and 0 <= y < fourth
        self.num += 1
        self.as_corners += is_corner and third <= width and fourth <= height
        self.as_sizes += min(x, y) >= 0 < min(third, fourth) and x + third <= width and y + fourth <= height
        self.as_shares += is_corner and max(third, fourth) <= 1
        self.as_percents += min(box) >= 0 and max(box) <= 100
        self.past_percents += min(size) > 120
        self.as_thousandths += is_corner and max(third, fourth) <= 1000
        self.on_large += min(size) > 1200
        self.most = max(self.most, *box)

    @property
    def suspicion(self) -> str | None:
        """A sentence, with the remedy, for boxes that do not look like corners in pixels; else None."""
        if self.num == 0:
            return None
        if self.as_shares == self.num:
            return f"all {self.num} boxes lie within 0 to 1, so they look like shares of the picture: give --boxes norm1"
        outside = self.num - self.as_corners
        misfits = self.as_sizes < self.num and outside >= 0.05 * self.num
        if self.as_percents == self.num >= FEW and (self.past_percents == self.num or misfits):
            return (
                f"none of the {self.num} boxes goes beyond {self.most:g}, however large its picture, so they may be percents of "
                "the picture: divide them by 100 and give --boxes norm1 (norm1,xywh for x, y, width and height), or give --boxes "
                "xyxy or xywh if they are pixels"
            )
        if self.as_sizes == self.num and self.as_corners < self.num:
            return (
                f"{self.num - self.as_corners} of {self.num} boxes are no two corners, and all fit as x, y, width and height: "
                "give --boxes xywh"
            )
        # one slip is no habit: small pictures hold no number beyond 1000 anyway
        if self.as_thousandths == self.num and outside >= (0.05 if self.num >= FEW else 0.5) * self.num > 0:
            return (
                f"{outside} of {self.num} boxes lie outside their pictures, and none goes beyond 1000, so "
                "they look like thousandths: give --boxes norm1000"
            )
        if self.as_thousandths == self.num == self.on_large and self.num >= FEW:
            return (
                f"all pictures are larger than 1,200 pixels, and none of the {self.num} boxes goes beyond {self.most:g}, so they "
                "may be thousandths: give --boxes norm1000, or --boxes xyxy if they are pixels"
            )
        return None
