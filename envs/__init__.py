"""Floor 2: decisions of distributed training as Gymnasium environments.

Importing this package registers its ids: ``gym.make("dtgym/CommunicationTuning-v0")`` after the
import, or ``gym.make("dtgym.envs:dtgym/CommunicationTuning-v0")`` without it.
"""

from dtgym.envs.registration import register_all

register_all()
