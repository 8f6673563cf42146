"""The score that a published test set's judge gives what was drawn: see "Published test sets" on the site.

Prompts are those of the data set `suite`. The judge answers the published questions; reading its answers equals the official
code. Pictures whose answer cannot be read are left out, as there, and counted as unparsed.

Modality: image
Range: [0, 1]; imgedit: [1, 5]
Source: the official code of each test set, named in its file in datasets/suites
Licence: own code Apache-2.0; the judge's weights see their card
"""

from dataclasses import dataclass

from mmrl import Group, Need, Scored, find_suite
from mmrl.answers.needs import columns
from mmrl.data.suites.suite import Judge
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.serving.judges.judge import AsksServer, Question, ask_in_lots
from mmrl.serving.judges.verdicts import final_text
from mmrl.serving.media import pictures_of, sources_of


@dataclass(frozen=True)
class SuiteJudge(AsksServer):
    """A judge's opinion of pictures for one test set; of edits it sees the pictures before them as well."""

    suite: str = ""
    """The test set's name: dpg_bench, unigenbench, imgedit."""
    needs = Need(
        "the column questions, of the data set suite", columns("questions"), setup="server (OpenAI-compatible, with vision)"
    )
    pointwise = True

    def ready(self) -> None:
        """Raises RewardUnavailableError without the server, naming the published judge."""
        judge = self._judge()
        try:
            super().ready()
        except RewardUnavailableError as error:
            raise RewardUnavailableError(
                f"{error}; suite {self.suite} was published with {judge.model} ({judge.source})"
            ) from None

    def __call__(self, group: Group) -> list[float | Scored | None]:
        judge, prompt = self._judge(), group.prompt
        if not prompt.columns.get("questions"):
            raise ValueError(f"prompt {prompt.id!r} has no column questions, for a judge: take the data set suite")
        sources = sources_of(prompt) if prompt.media else []
        asked = [
            [Question(text, [*sources, picture], text_first=judge.text_first) for text in prompt.columns["questions"]]
            for picture in pictures_of(group)
        ]
        return list(ask_in_lots(self.server, asked, lambda replies: judge.read(prompt, [final_text(one) for one in replies])))

    def _judge(self) -> Judge:
        suite = find_suite(self.suite)
        if suite.judge is None:
            raise ValueError(f"suite {suite.name} has no judge: its reward is {suite.reward['use']!r}")
        return suite.judge
