"""The mail room where each letter is paid at once: what turn credit could reach there at most.

    turngym train credit_mailroom env=benchmarks/credit/paid_mail.py \
        'algo.advantage.terms=[{"returns": "reward_to_go", "gamma": 0, "group_by": "task_turn"}]'
"""

from dataclasses import replace

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.text.mail_room import MailRoomEnv


class PaidMailRoomEnv(MailRoomEnv):
    """As the mail room, but the reward of a turn is what its letter adds to the score."""

    name = "paid-mail"

    def turn(self, action: Action) -> Outcome:
        before = self.score()
        return replace(super().turn(action), reward=self.score() - before)

    def end_at_limit(self) -> Outcome:
        return replace(super().end_at_limit(), reward=0.0)
