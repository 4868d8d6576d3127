//! Outside systems of a simulation: they keep their state whatever becomes of the engines.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    seam,
    testing::simulation::{self, Rng},
};

/// An outside system (a payment provider, a mail server) as a value in memory, for tests.
///
/// A body sends a request with [`call`](Fake::call). In a [simulation](super::simulate()) the seed decides
/// what becomes of it: the request may be lost, carried out and not answered, carried out twice, or
/// answered late. Elsewhere every request is carried out once, so the same workflow runs in plain unit
/// tests, too. A request that was carried out stays done when the process that sent it
/// dies, as with a real system.
///
/// A body finds it with `ctx.get::<Fake<T>>()`, once [`Simulation::fake`](super::Simulation::fake) or
/// [`EngineBuilder::provide`](crate::EngineBuilder::provide) has brought it in.
pub struct Fake<T> {
    state: Arc<Mutex<T>>,
    weather: Weather,
}

impl<T> Clone for Fake<T> {
    fn clone(&self) -> Fake<T> {
        Fake { state: self.state.clone(), weather: self.weather }
    }
}

impl<T> fmt::Debug for Fake<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").finish_non_exhaustive()
    }
}

/// How often requests go wrong, in a thousand each, and until when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    pub(super) lost_requests: u32,
    pub(super) lost_answers: u32,
    pub(super) doubled: u32,
    pub(super) latency_max: Duration,
    /// Nothing goes wrong after this time of the simulation.
    pub(super) calm_after: Duration,
}

impl Weather {
    /// The weather of a seed.
    pub(super) fn draw(rng: &mut Rng, calm_after: Duration, lease: Duration) -> Weather {
        // In one of three lives the outside systems never fail.
        let most = [0, 60, 300][rng.below(3) as usize];
        let mut rate = || rng.below(most + 1) as u32;
        let (lost_requests, lost_answers, doubled) = (rate(), rate(), rate());
        let latency_max = [Duration::ZERO, lease / 20, lease * 2][rng.below(3) as usize];
        Weather { lost_requests, lost_answers, doubled, latency_max, calm_after }
    }

    fn is_over(self) -> bool {
        !seam::is_simulated() || simulation::time() >= self.calm_after
    }

    fn happens(self, per_mille: u32) -> bool {
        !self.is_over() && simulation::random() % 1_000 < u64::from(per_mille)
    }

    async fn on_its_way(self) {
        let most = u64::try_from(self.latency_max.as_nanos()).unwrap_or(u64::MAX);
        if !self.is_over() && most > 0 {
            simulation::pause(Duration::from_nanos(simulation::random() % most)).await;
        }
    }
}

/// Why a body has no answer of a [`Fake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FakeError {
    /// No answer came. The request may have been carried out once, twice or not at all.
    #[error("the outside system did not answer")]
    NoAnswer,
}

impl<T> Fake<T> {
    /// A system in this state, in which nothing goes wrong.
    pub fn new(state: T) -> Fake<T> {
        Fake::in_weather(state, Weather::default())
    }

    pub(super) fn in_weather(state: T, weather: Weather) -> Fake<T> {
        Fake { state: Arc::new(Mutex::new(state)), weather }
    }

    /// Sends a request: `request` is what the system does when it arrives, and what it answers. It is run
    /// twice if the network repeats the request.
    ///
    /// # Errors
    ///
    /// [`FakeError::NoAnswer`], if the request or its answer was lost. As with a real system, the request
    /// may have been carried out.
    pub async fn call<R>(&self, mut request: impl FnMut(&mut T) -> R) -> Result<R, FakeError> {
        let weather = self.weather;
        weather.on_its_way().await;
        if weather.happens(weather.lost_requests) {
            return Err(FakeError::NoAnswer);
        }
        let answer = request(&mut self.state());
        if weather.happens(weather.doubled) {
            // A network repeats a request whose first answer is on its way.
            request(&mut self.state());
        }
        weather.on_its_way().await;
        match weather.happens(weather.lost_answers) {
            true => Err(FakeError::NoAnswer),
            false => Ok(answer),
        }
    }

    /// The state of the outside system. It is locked until the guard is dropped: a second call in the same expression
    /// would wait for ever.
    pub fn state(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn outside_of_a_simulation_every_request_is_carried_out_once() {
        let weather = Weather { lost_requests: 1_000, doubled: 1_000, ..Weather::default() };
        let fake = Fake::in_weather(0, weather);
        for _ in 0..10 {
            assert!(fake.call(|count| *count += 1).await.is_ok());
        }
        assert_eq!(*fake.state(), 10);
    }
}
